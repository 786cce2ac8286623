package zz
import ("testing";"time";"fmt";"context")
func TestZZAdd(t *testing.T) {
	for _, mode := range []string{"off","auto"} {
	r := newRig(t, map[string]any{"fastPath": map[string]any{"mode": mode}})
	addPod(t, r, "first", nil)
	var tot, del time.Duration
	for i := range 10 {
		p,err := r.NewNetns(fmt.Sprint("p",i)); if err!=nil {t.Fatal(err)}
		s:=time.Now()
		if err := p.Add(context.Background(), r.Conf(nil)); err!=nil {t.Fatal(err)}
		tot += time.Since(s)
		s=time.Now()
		if err := p.Remove(context.Background()); err!=nil {t.Fatal(err)}
		del += time.Since(s)
	}
	t.Log(mode, tot/10, del/10)
	}
}
